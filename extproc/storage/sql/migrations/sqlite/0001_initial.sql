-- Requests: an index over events, not a second truth. `owner` is the processor that may write to the request; whoever takes
-- a request over changes it, and the old owner's events are refused from then on.
CREATE TABLE requests (
    request_id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    admitted_at_ms INTEGER NOT NULL,
    changed_at_ms INTEGER NOT NULL,
    outcome TEXT,
    stored_bytes INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE INDEX requests_by_time ON requests (admitted_at_ms);

CREATE INDEX open_requests ON requests (owner) WHERE outcome IS NULL;

-- `position` orders; (owner, number) names an event, so that a batch sent twice is stored once.
CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    number INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    attempt_id TEXT,
    replica TEXT,
    detail TEXT NOT NULL,
    UNIQUE (owner, number)
);

CREATE INDEX events_of_request ON events (request_id, position);

-- A key names one logical request; what became of it is in the request's events.
CREATE TABLE idempotency_keys (
    key_hash BLOB PRIMARY KEY,
    fingerprint BLOB NOT NULL,
    request_id TEXT NOT NULL,
    expires_at_ms INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX keys_of_request ON idempotency_keys (request_id);

CREATE INDEX keys_by_expiry ON idempotency_keys (expires_at_ms);

-- Whole answers, only of routes that asked for `replay`.
CREATE TABLE answers (
    request_id TEXT PRIMARY KEY,
    status INTEGER NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL
);

-- Which processes are alive, on the database's clock.
CREATE TABLE processors (
    processor_id TEXT PRIMARY KEY,
    alive_until_ms INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE tool_calls (
    key_hash BLOB PRIMARY KEY,
    call_key TEXT NOT NULL,
    tool TEXT NOT NULL,
    request_id TEXT,
    fingerprint BLOB NOT NULL,
    state TEXT NOT NULL,
    owner TEXT NOT NULL,
    started_at_ms INTEGER NOT NULL,
    ended_at_ms INTEGER,
    expires_at_ms INTEGER NOT NULL,
    why TEXT,
    status INTEGER,
    headers TEXT,
    body BLOB
);

CREATE INDEX tool_calls_of_request ON tool_calls (request_id) WHERE request_id IS NOT NULL;

CREATE INDEX tool_calls_by_time ON tool_calls (started_at_ms);

CREATE INDEX tool_calls_by_expiry ON tool_calls (expires_at_ms);
