-- Names with a role, whose secret allows requests. The secret itself is not stored.
CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    secret_hash TEXT NOT NULL UNIQUE,
    created_us BIGINT NOT NULL,
    used_us BIGINT,
    revoked_us BIGINT
);

-- Links that log a browser in once.
CREATE TABLE login_links (
    code_hash TEXT PRIMARY KEY,
    token TEXT NOT NULL REFERENCES tokens (id),
    expires_us BIGINT NOT NULL
);

-- Browsers that are logged in. A session ends with its token.
CREATE TABLE sessions (
    secret_hash TEXT PRIMARY KEY,
    token TEXT NOT NULL REFERENCES tokens (id),
    csrf TEXT NOT NULL,
    expires_us BIGINT NOT NULL
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
    runs BIGINT NOT NULL
);

-- Number of runs of a group that started in a period of 1 or 32 days, counted from 1970.
CREATE TABLE period_counts (
    days BIGINT NOT NULL,
    period BIGINT NOT NULL,
    run_group TEXT NOT NULL REFERENCES run_groups (id),
    runs BIGINT NOT NULL,
    PRIMARY KEY (days, period, run_group)
);

-- One row for each run. Its records are an object.
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    content_hash TEXT NOT NULL UNIQUE,
    run_group TEXT NOT NULL REFERENCES run_groups (id),
    uploader TEXT NOT NULL REFERENCES tokens (id),
    received_us BIGINT NOT NULL,
    started_us BIGINT NOT NULL,
    name TEXT NOT NULL,
    stack TEXT NOT NULL,
    congestion_control TEXT NOT NULL,
    patterns TEXT NOT NULL,
    kernel TEXT NOT NULL,
    seed TEXT NOT NULL,
    repetition BIGINT NOT NULL,
    scenario_hash TEXT NOT NULL,
    verdict TEXT NOT NULL,
    multipath TEXT NOT NULL,
    duration_us BIGINT NOT NULL,
    goodput_bps DOUBLE PRECISION,
    delay_p50_us DOUBLE PRECISION,
    delay_p99_us DOUBLE PRECISION,
    stall_us DOUBLE PRECISION,
    recovery_us DOUBLE PRECISION,
    connect_us DOUBLE PRECISION,
    retransmissions BIGINT NOT NULL,
    warnings BIGINT NOT NULL,
    records BIGINT NOT NULL,
    stored_bytes BIGINT NOT NULL,
    expanded_bytes BIGINT NOT NULL
);
CREATE INDEX runs_by_time ON runs (started_us, id);
CREATE INDEX runs_by_group ON runs (run_group, started_us, id);
CREATE INDEX runs_by_goodput ON runs (goodput_bps, id);
CREATE INDEX runs_by_stall ON runs (stall_us, id);
CREATE INDEX runs_by_delay ON runs (delay_p99_us, id);
