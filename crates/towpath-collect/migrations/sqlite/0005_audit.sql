-- Actions of administrators, and deletions by the owners of devices.
CREATE TABLE audit (
    id TEXT PRIMARY KEY,
    at_us INTEGER NOT NULL,
    -- `admin`, `local` or `device`.
    actor_kind TEXT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    object TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX audit_by_time ON audit (at_us, id);
-- Entries are never deleted.
CREATE TRIGGER audit_is_permanent BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'entries of the audit log are permanent');
END;
