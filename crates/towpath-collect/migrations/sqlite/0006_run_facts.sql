-- Facts of the runs of devices, for analyses of campaigns. They follow from the records, and can be
-- computed again.
CREATE TABLE run_facts (
    run TEXT PRIMARY KEY REFERENCES runs (id),
    -- Name of the campaign in the result.
    campaign TEXT NOT NULL,
    -- Version of the facts. Those of another version are computed again.
    version INTEGER NOT NULL,
    -- JSON without the device, which is the uploader of the run.
    facts TEXT NOT NULL
);
CREATE INDEX run_facts_by_campaign ON run_facts (campaign);
