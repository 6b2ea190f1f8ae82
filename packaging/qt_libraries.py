"""Whether the window can open at all: a display, and on Linux the system libraries that Qt is linked against.

Qt itself only says "could not load the Qt platform plugin" and aborts; here the package to install is named first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# What libQt6Gui, Network, DBus and the xcb and wayland plugins are linked against -> (Debian and Ubuntu, Fedora).
PACKAGES = {
    "libEGL.so.1": ("libegl1", "libglvnd-egl"),
    "libGL.so.1": ("libgl1", "libglvnd-glx"),
    "libX11.so.6": ("libx11-6", "libX11"),
    "libX11-xcb.so.1": ("libx11-xcb1", "libX11-xcb"),
    "libbrotlidec.so.1": ("libbrotli1", "libbrotli"),
    "libdbus-1.so.3": ("libdbus-1-3", "dbus-libs"),
    "libfontconfig.so.1": ("libfontconfig1", "fontconfig"),
    "libfreetype.so.6": ("libfreetype6", "freetype"),
    "libglib-2.0.so.0": ("libglib2.0-0", "glib2"),
    "libgthread-2.0.so.0": ("libglib2.0-0", "glib2"),
    "libgssapi_krb5.so.2": ("libgssapi-krb5-2", "krb5-libs"),
    "libwayland-client.so.0": ("libwayland-client0", "libwayland-client"),
    "libwayland-cursor.so.0": ("libwayland-cursor0", "libwayland-cursor"),
    "libwayland-egl.so.1": ("libwayland-egl1", "libwayland-egl"),
    "libxcb.so.1": ("libxcb1", "libxcb"),
    "libxcb-cursor.so.0": ("libxcb-cursor0", "xcb-util-cursor"),
    "libxcb-icccm.so.4": ("libxcb-icccm4", "xcb-util-wm"),
    "libxcb-image.so.0": ("libxcb-image0", "xcb-util-image"),
    "libxcb-keysyms.so.1": ("libxcb-keysyms1", "xcb-util-keysyms"),
    "libxcb-randr.so.0": ("libxcb-randr0", "libxcb"),
    "libxcb-render.so.0": ("libxcb-render0", "libxcb"),
    "libxcb-render-util.so.0": ("libxcb-render-util0", "xcb-util-renderutil"),
    "libxcb-shape.so.0": ("libxcb-shape0", "libxcb"),
    "libxcb-shm.so.0": ("libxcb-shm0", "libxcb"),
    "libxcb-sync.so.1": ("libxcb-sync1", "libxcb"),
    "libxcb-util.so.1": ("libxcb-util1", "xcb-util"),
    "libxcb-xfixes.so.0": ("libxcb-xfixes0", "libxcb"),
    "libxcb-xkb.so.1": ("libxcb-xkb1", "libxcb"),
    "libxkbcommon.so.0": ("libxkbcommon0", "libxkbcommon"),
    "libxkbcommon-x11.so.0": ("libxkbcommon-x11-0", "libxkbcommon-x11"),
}


def window_obstacle(environment: Path, variables: Mapping[str, str]) -> str | None:
    """One sentence on why no window can open, or None. `environment` is the virtual environment with PySide6."""
    if not sys.platform.startswith("linux"):
        return None
    platform = qt_platform(variables)
    if platform is None:
        return (
            "There is no display to open the window on (neither DISPLAY nor WAYLAND_DISPLAY is set); "
            "start Ember from a desktop session, or use its command line: .venv/bin/ember ask --new 'Hello'"
        )
    missing = missing_libraries(_qt_binaries(environment, platform))
    return missing_sentence(missing) if missing else None


def missing_for_tests(environment: Path) -> str | None:
    """The same for tests, which draw off the screen."""
    if not sys.platform.startswith("linux"):
        return None
    missing = missing_libraries(_qt_binaries(environment, "offscreen"))
    return missing_sentence(missing) if missing else None


def qt_platform(variables: Mapping[str, str]) -> str | None:
    """The platform plugin that Qt will take: "xcb", "wayland", "offscreen" ..., or None without a display."""
    if chosen := variables.get("QT_QPA_PLATFORM"):
        return chosen.split(";")[0].split(":")[0]
    if variables.get("DISPLAY"):
        return "xcb"
    return "wayland" if variables.get("WAYLAND_DISPLAY") else None


def missing_libraries(binaries: Iterable[Path]) -> list[str]:
    """Libraries that the loader does not find for these files, sorted. Nothing is loaded; about 50 ms."""
    files = [str(binary) for binary in binaries]
    if not files or shutil.which("ldd") is None:
        return []
    environment = {**os.environ, "LC_ALL": "C"}
    listing = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False, env=environment)
    return sorted(set(re.findall(r"^\s*(\S+) => not found", listing.stdout, re.MULTILINE)))


def missing_sentence(libraries: list[str]) -> str:
    """Names the packages of both families; a library nobody listed is named itself."""
    known = [PACKAGES[library] for library in libraries if library in PACKAGES]
    unknown = [library for library in libraries if library not in PACKAGES]
    words = f"The window needs system libraries that are missing here ({', '.join(libraries)})"
    if not known:
        return f"{words}; install the packages of your system that hold them and start again"
    debian = " ".join(sorted({package[0] for package in known}))
    fedora = " ".join(sorted({package[1] for package in known}))
    rest = f", and the package that holds {', '.join(unknown)}" if unknown else ""
    return (
        f"{words}; install them with 'sudo apt install {debian}' (Debian, Ubuntu) "
        f"or 'sudo dnf install {fedora}' (Fedora){rest}, then start again"
    )


def _qt_binaries(environment: Path, platform: str) -> list[Path]:
    found = sorted(environment.glob("lib*/python*/site-packages/PySide6"))
    if not found:
        return []
    wanted = ["QtGui.abi3.so", "QtWidgets.abi3.so", "QtNetwork.abi3.so", f"Qt/plugins/platforms/libq{platform}.so"]
    return [found[0] / name for name in wanted if (found[0] / name).is_file()]
