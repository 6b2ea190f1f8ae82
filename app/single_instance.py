"""A second start brings the first window forward: a local socket, named after the data folder. GUI thread.

The lock (`app.instance_lock`) decides who is first; the socket is a courtesy.
"""

from __future__ import annotations

import hashlib
import os

from PySide6.QtCore import QObject, Signal, Slot
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from app.paths import DataPaths

_CONNECT_MS = 500


class InstanceServer(QObject):
    """Listens for a second start. Made by the holder of the lock only, so that a socket lying there is a dead one's."""

    raise_asked = Signal()

    def __init__(self, paths: DataPaths, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._on_connected)
        name = server_name(paths)
        QLocalServer.removeServer(name)
        self._server.listen(name)

    def close(self) -> None:
        self._server.close()

    @Slot()
    def _on_connected(self) -> None:
        while (socket := self._server.nextPendingConnection()) is not None:
            socket.disconnected.connect(socket.deleteLater)
            socket.disconnectFromServer()
            self.raise_asked.emit()


def raise_first_instance(paths: DataPaths) -> bool:
    """Ask the Ember that holds the data folder to come to the front. False where none listens."""
    socket = QLocalSocket()
    socket.connectToServer(server_name(paths))
    return socket.waitForConnected(_CONNECT_MS)


def server_name(paths: DataPaths) -> str:
    """The same for every way to write the folder's name."""
    return "ember-" + hashlib.sha256(os.fsencode(paths.data_dir.resolve())).hexdigest()[:20]
