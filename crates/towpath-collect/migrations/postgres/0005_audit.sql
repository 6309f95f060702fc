-- Actions of administrators, and deletions by the owners of devices.
CREATE TABLE audit (
    id TEXT PRIMARY KEY,
    at_us BIGINT NOT NULL,
    -- `admin`, `local` or `device`.
    actor_kind TEXT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    object TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX audit_by_time ON audit (at_us, id);
-- Entries are never deleted.
CREATE RULE audit_is_permanent AS ON DELETE TO audit DO INSTEAD NOTHING;
