-- The database of schema version 5: as version 4, with the list of what an unfinished import has brought. Frozen: never edit.
PRAGMA journal_mode = WAL;
PRAGMA application_id = 1164796530;
PRAGMA user_version = 5;
BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'ember','m001_conversations_and_messages','2026-01-01 00:00:00.000000+00:00');
INSERT INTO "_sqlite_migrations" VALUES(2,'ember','m002_pinned_conversations','2026-01-01 00:00:00.000000+00:00');
INSERT INTO "_sqlite_migrations" VALUES(3,'ember','m003_branches_folders_options','2026-01-01 00:00:00.000000+00:00');
INSERT INTO "_sqlite_migrations" VALUES(4,'ember','m004_search','2026-01-01 00:00:00.000000+00:00');
INSERT INTO "_sqlite_migrations" VALUES(5,'ember','m005_unfinished_imports','2026-01-01 00:00:00.000000+00:00');
CREATE TABLE conversations (
            id TEXT PRIMARY KEY,
            title TEXT NOT NULL DEFAULT '',
            system_prompt TEXT NOT NULL DEFAULT '',
            model TEXT,
            draft TEXT NOT NULL DEFAULT '',
            created_at TEXT NOT NULL,
            updated_at TEXT NOT NULL
        , is_pinned INTEGER NOT NULL DEFAULT 0, folder_id INTEGER, options TEXT, view_from INTEGER, draft_attachments TEXT);
INSERT INTO "conversations" VALUES('a1b2c3d4e5f60718293a4b5c6d7e8f90','Tides','','tiny','','2026-01-05T09:00:00.000000+00:00','2026-01-05T09:00:09.000000+00:00',1,1,'{"temperature": 0.5}',NULL,NULL);
INSERT INTO "conversations" VALUES('0f1e2d3c4b5a69788796a5b4c3d2e1f0','요약해 줘','Be brief.',NULL,'그리고','2026-02-01T10:00:00.000000+00:00','2026-02-01T10:00:05.000000+00:00',0,NULL,NULL,3,'[{"name": "a.txt", "text": "가", "num_bytes": 3}]');
CREATE TABLE folders (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL);
INSERT INTO "folders" VALUES(1,'바다');
CREATE TABLE messages (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            conversation_id TEXT NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
            role TEXT NOT NULL,
            text TEXT NOT NULL,
            state TEXT NOT NULL,
            created_at TEXT NOT NULL,
            token_ids BLOB,
            tokenizer_id TEXT,
            finish_reason TEXT,
            statistics TEXT,
            model TEXT
        , parent_id INTEGER, is_selected INTEGER NOT NULL DEFAULT 1, attachments TEXT);
INSERT INTO "messages" VALUES(1,'a1b2c3d4e5f60718293a4b5c6d7e8f90','user','Why are there two tides a day?','complete','2026-01-05T09:00:01.000000+00:00',NULL,NULL,NULL,NULL,NULL,NULL,1,NULL);
INSERT INTO "messages" VALUES(2,'a1b2c3d4e5f60718293a4b5c6d7e8f90','assistant','Because the Moon pulls on the near side most.','complete','2026-01-05T09:00:02.000000+00:00',X'0100000000010000FFBF0000','t-1','stop','{"prompt_tokens": 40, "reused_tokens": 0, "prefilled_tokens": 40, "new_tokens": 3, "miss_reason": null, "load_s": 1.5, "restore_s": 0.0, "ttft_s": 0.25, "prefill_tps": 160.0, "decode_tps": 31.5, "cache": {"tokens": 43, "bytes": 990720, "precision": "bf16", "place": "cpu"}}','tiny',1,1,NULL);
INSERT INTO "messages" VALUES(3,'0f1e2d3c4b5a69788796a5b4c3d2e1f0','user','이 글을 요약해 줘','complete','2026-02-01T10:00:01.000000+00:00',NULL,NULL,NULL,NULL,NULL,NULL,1,NULL);
INSERT INTO "messages" VALUES(4,'0f1e2d3c4b5a69788796a5b4c3d2e1f0','assistant','짧게 말하','streaming','2026-02-01T10:00:02.000000+00:00',X'0700000008000000','t-1',NULL,NULL,'tiny',3,1,NULL);
INSERT INTO "messages" VALUES(5,'a1b2c3d4e5f60718293a4b5c6d7e8f90','assistant','I do not know.','complete','2026-01-05T09:00:01.500000+00:00',NULL,NULL,NULL,NULL,NULL,1,0,NULL);
CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");
CREATE INDEX streaming_messages ON messages(state) WHERE state = 'streaming';
CREATE INDEX messages_in_tree ON messages(conversation_id, parent_id, is_selected);
CREATE VIRTUAL TABLE message_index USING fts5(text, tokenize = 'trigram case_sensitive 1');
INSERT INTO message_index(rowid, text) VALUES(1,'why are there two tides a day?');
INSERT INTO message_index(rowid, text) VALUES(2,'because the moon pulls on the near side most.');
INSERT INTO message_index(rowid, text) VALUES(3,'이 글을 요약해 줘');
INSERT INTO message_index(rowid, text) VALUES(4,'짧게 말하');
INSERT INTO message_index(rowid, text) VALUES(5,'i do not know.');
CREATE TRIGGER index_added_message AFTER INSERT ON messages BEGIN INSERT INTO message_index(rowid, text) VALUES (new.id, fold(new.text)); END;
CREATE TRIGGER index_changed_message AFTER UPDATE OF text, state ON messages WHEN new.state <> 'streaming' BEGIN UPDATE message_index SET text = fold(new.text) WHERE rowid = new.id; END;
CREATE TRIGGER index_removed_message AFTER DELETE ON messages BEGIN DELETE FROM message_index WHERE rowid = old.id; END;
CREATE TABLE unfinished_imports (
            conversation_id TEXT PRIMARY KEY REFERENCES conversations(id) ON DELETE CASCADE,
            updated_at TEXT NOT NULL,
            draft TEXT NOT NULL
        );
CREATE TABLE unfinished_import_folders (
            folder_id INTEGER PRIMARY KEY REFERENCES folders(id) ON DELETE CASCADE
        );
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('messages',5);
INSERT INTO "sqlite_sequence" VALUES('folders',1);
COMMIT;
