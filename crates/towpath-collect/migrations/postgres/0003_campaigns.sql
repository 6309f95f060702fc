-- Campaigns with the signature of the collector's key.
CREATE TABLE campaigns (
    name TEXT PRIMARY KEY,
    text TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    signature TEXT NOT NULL,
    state TEXT NOT NULL,
    -- No run is planned at this time or later: the end of the text, or the time when the operator
    -- ended the campaign.
    end_us BIGINT NOT NULL
);

-- Outcomes of planned runs that devices reported. Columns that a state does not have are empty.
CREATE TABLE outcomes (
    campaign TEXT NOT NULL REFERENCES campaigns (name),
    token TEXT NOT NULL REFERENCES devices (token),
    round BIGINT NOT NULL,
    run BIGINT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    result TEXT NOT NULL,
    at_us BIGINT NOT NULL,
    PRIMARY KEY (campaign, token, round, run)
);
CREATE INDEX outcomes_by_token ON outcomes (token);

-- Time at which the owner of a device withdrew the consent.
ALTER TABLE devices ADD COLUMN withdrawn_us BIGINT;
