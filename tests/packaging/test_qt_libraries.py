"""Before the window: a display, and the system libraries by the names of their packages (user scenario 46)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import qt_libraries

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
ENVIRONMENT = Path(sys.prefix)


def test_the_sentence_names_the_packages_of_both_families() -> None:
    sentence = qt_libraries.missing_sentence(["libxcb-cursor.so.0", "libxcb-shape.so.0"])
    assert "sudo apt install libxcb-cursor0 libxcb-shape0'" in sentence
    assert "sudo dnf install libxcb xcb-util-cursor'" in sentence


def test_an_unlisted_library_is_named_itself() -> None:
    assert "libodd.so.3" in qt_libraries.missing_sentence(["libodd.so.3"])
    both = qt_libraries.missing_sentence(["libEGL.so.1", "libodd.so.3"])
    assert "libegl1" in both
    assert "the package that holds libodd.so.3" in both


@pytest.mark.skipif(shutil.which("ldd") is None or shutil.which("cc") is None, reason="needs ldd and a C compiler")
def test_a_library_that_is_gone_is_found_out_without_loading_anything(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int a(void) { return 1; }\n")
    (tmp_path / "b.c").write_text("int a(void); int b(void) { return a(); }\n")
    library, plugin = tmp_path / "libember-probe.so.0", tmp_path / "plugin.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, f"-Wl,-soname,{library.name}", "a.c"], check=True, cwd=tmp_path
    )
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", plugin, "b.c", library, "-Wl,-rpath,$ORIGIN"], check=True, cwd=tmp_path
    )
    assert qt_libraries.missing_libraries([plugin]) == []
    library.unlink()
    assert qt_libraries.missing_libraries([plugin]) == ["libember-probe.so.0"]


def test_no_display_is_said_in_one_sentence() -> None:
    sentence = qt_libraries.window_obstacle(ENVIRONMENT, {})
    assert sentence is not None
    assert "no display" in sentence
    assert "ember ask" in sentence


@pytest.mark.parametrize(
    ("variables", "platform"),
    [
        ({"DISPLAY": ":0"}, "xcb"),
        ({"DISPLAY": ":0", "WAYLAND_DISPLAY": "wayland-0"}, "xcb"),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "wayland"),
        ({"QT_QPA_PLATFORM": "offscreen"}, "offscreen"),
        ({"QT_QPA_PLATFORM": "wayland;xcb", "DISPLAY": ":0"}, "wayland"),
        ({"QT_QPA_PLATFORM": "vnc:size=800x600"}, "vnc"),
        ({}, None),
    ],
)
def test_the_platform_that_qt_will_take(variables: dict[str, str], platform: str | None) -> None:
    assert qt_libraries.qt_platform(variables) == platform


def test_this_environment_can_draw() -> None:
    """The files that are looked at exist here, so that a green check means something."""
    assert len(qt_libraries._qt_binaries(ENVIRONMENT, "xcb")) == 4
    assert qt_libraries.missing_for_tests(ENVIRONMENT) is None


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
def test_every_direct_dependency_of_the_plugins_has_a_package_name() -> None:
    """A newer Qt that links something new fails here, not on a user's machine."""
    libraries = Path(sys.prefix).glob("lib/python*/site-packages/PySide6/Qt/lib/libQt6*.so.6")
    looked_at = [library for library in libraries if library.name.split(".")[0] in ("libQt6Gui", "libQt6XcbQpa")]
    looked_at += [binary for binary in qt_libraries._qt_binaries(ENVIRONMENT, "xcb") if "libq" in binary.name]
    assert len(looked_at) == 3
    listing = subprocess.run(["readelf", "-d", *looked_at], capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in listing.splitlines() if "(NEEDED)" in line}
    own = ("libQt6", "libicu", "libpyside", "libshiboken")
    basic = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
    everywhere = basic | {"libz.so.1"}
    assert {name for name in needed if not name.startswith(own)} - everywhere - set(qt_libraries.PACKAGES) == set()
