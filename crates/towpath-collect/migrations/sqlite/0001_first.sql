-- Names with a role, whose secret allows requests. The secret itself is not stored.
CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    secret_hash TEXT NOT NULL UNIQUE,
    created_us INTEGER NOT NULL,
    used_us INTEGER,
    revoked_us INTEGER
);

-- Links that log a browser in once.
CREATE TABLE login_links (
    code_hash TEXT PRIMARY KEY,
    token TEXT NOT NULL REFERENCES tokens (id),
    expires_us INTEGER NOT NULL
);

-- Browsers that are logged in. A session ends with its token.
CREATE TABLE sessions (
    secret_hash TEXT PRIMARY KEY,
    token TEXT NOT NULL REFERENCES tokens (id),
    csrf TEXT NOT NULL,
    expires_us INTEGER NOT NULL
);

-- Runs that agree in every column of the filter. A page counts these few rows, not the runs.
CREATE TABLE run_groups (
    id TEXT PRIMARY KEY,
    scenario TEXT NOT NULL,
    world TEXT NOT NULL,
    transport TEXT NOT NULL,
    host TEXT NOT NULL,
    server TEXT NOT NULL,
    family TEXT NOT NULL,
    version TEXT NOT NULL,
    outcome TEXT NOT NULL,
    runs INTEGER NOT NULL
);

-- Number of runs of a group that started in a period of 1 or 32 days, counted from 1970.
CREATE TABLE period_counts (
    days INTEGER NOT NULL,
    period INTEGER NOT NULL,
    run_group TEXT NOT NULL REFERENCES run_groups (id),
    runs INTEGER NOT NULL,
    PRIMARY KEY (days, period, run_group)
);

-- One row for each run. Its records are an object.
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    content_hash TEXT NOT NULL UNIQUE,
    run_group TEXT NOT NULL REFERENCES run_groups (id),
    uploader TEXT NOT NULL REFERENCES tokens (id),
    received_us INTEGER NOT NULL,
    started_us INTEGER NOT NULL,
    name TEXT NOT NULL,
    stack TEXT NOT NULL,
    congestion_control TEXT NOT NULL,
    patterns TEXT NOT NULL,
    kernel TEXT NOT NULL,
    seed TEXT NOT NULL,
    repetition INTEGER NOT NULL,
    scenario_hash TEXT NOT NULL,
    verdict TEXT NOT NULL,
    multipath TEXT NOT NULL,
    duration_us INTEGER NOT NULL,
    goodput_bps REAL,
    delay_p50_us REAL,
    delay_p99_us REAL,
    stall_us REAL,
    recovery_us REAL,
    connect_us REAL,
    retransmissions INTEGER NOT NULL,
    warnings INTEGER NOT NULL,
    records INTEGER NOT NULL,
    stored_bytes INTEGER NOT NULL,
    expanded_bytes INTEGER NOT NULL
);
CREATE INDEX runs_by_time ON runs (started_us, id);
CREATE INDEX runs_by_group ON runs (run_group, started_us, id);
CREATE INDEX runs_by_goodput ON runs (goodput_bps, id);
CREATE INDEX runs_by_stall ON runs (stall_us, id);
CREATE INDEX runs_by_delay ON runs (delay_p99_us, id);
