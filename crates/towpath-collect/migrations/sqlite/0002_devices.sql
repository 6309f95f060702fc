-- Codes with which a device joins once. The code itself is not stored.
CREATE TABLE join_codes (
    code_hash TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    expires_us INTEGER NOT NULL
);

-- Devices of volunteers. Their names are those of their tokens.
CREATE TABLE devices (
    token TEXT PRIMARY KEY REFERENCES tokens (id),
    -- Version of the accepted text; 0 once the owner has withdrawn the consent.
    consent INTEGER NOT NULL,
    version TEXT NOT NULL,
    platform TEXT NOT NULL,
    joined_us INTEGER NOT NULL
);

-- Texts that owners of devices accept. Without a row, the text of the program is version 1.
CREATE TABLE consents (
    version INTEGER PRIMARY KEY,
    text TEXT NOT NULL,
    created_us INTEGER NOT NULL
);

-- Runs that a device has deleted, and whose records may still exist.
CREATE TABLE deleted_runs (
    id TEXT PRIMARY KEY,
    token TEXT NOT NULL REFERENCES devices (token)
);

CREATE INDEX runs_by_uploader ON runs (uploader, started_us, id);
CREATE INDEX period_counts_by_group ON period_counts (run_group);
