-- Test servers that have sent a heartbeat. Their names are those of their tokens.
CREATE TABLE test_servers (
    token TEXT PRIMARY KEY REFERENCES tokens (id),
    -- Latest heartbeat, as JSON.
    heartbeat TEXT NOT NULL,
    -- Key of access grants, in hexadecimal digits. The collector needs the key itself.
    access_key TEXT NOT NULL,
    seen_us INTEGER NOT NULL
);
