"""Folders of conversations."""

from __future__ import annotations

import unicodedata

from app.conversation import Folder
from app.errors import DamagedDatabaseError, UnknownFolderError
from app.records import text_from
from app.store.heads import ConversationHeads


class Folders(ConversationHeads):
    def folders(self) -> list[Folder]:
        """By name; a name in decomposed Hangul stands where the composed one would."""
        try:
            rows = self._query("SELECT id, name FROM main.folders ORDER BY id")
        except DamagedDatabaseError:
            rows = self._salvage("main.folders")
        folders = [Folder(row["id"], text_from(row["name"])) for row in rows]
        return sorted(folders, key=lambda folder: unicodedata.normalize("NFC", folder.name).casefold())

    def create_folder(self, name: str) -> Folder:
        return Folder(self._insert("main.folders", {"name": name}), name)

    def rename_folder(self, folder_id: int, name: str) -> None:
        """A folder that is gone is no error."""
        self._execute("UPDATE main.folders SET name = ? WHERE id = ?", name, folder_id)

    def delete_folder(self, folder_id: int) -> None:
        """Its conversations stay, in no folder."""
        with self.transaction():
            for schema in ("main", "incognito"):
                self._execute(f"UPDATE {schema}.conversations SET folder_id = NULL WHERE folder_id = ?", folder_id)
            self._execute("DELETE FROM main.folders WHERE id = ?", folder_id)

    def set_folder(self, conversation_id: str, folder_id: int | None) -> None:
        """Put a conversation into a folder, or (None) out of it. Raises UnknownFolderError."""
        if folder_id is not None and not self._query("SELECT 1 FROM main.folders WHERE id = ?", folder_id):
            raise UnknownFolderError("This folder is gone; choose another one.", id=str(folder_id))
        self._change("conversations", conversation_id, folder_id=folder_id)
