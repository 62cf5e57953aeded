-- name: admit_requests
INSERT INTO requests (request_id, owner, admitted_at_ms, changed_at_ms, outcome, stored_bytes)
SELECT
    json_extract(value, '$[0]'),
    :owner,
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]'),
    json_extract(value, '$[3]'),
    json_extract(value, '$[4]')
FROM json_each(:requests)
WHERE json_extract(value, '$[1]') IS NOT NULL
ON CONFLICT (request_id) DO UPDATE SET
    changed_at_ms = excluded.changed_at_ms,
    outcome = coalesce(excluded.outcome, requests.outcome),
    stored_bytes = requests.stored_bytes + excluded.stored_bytes
WHERE requests.owner = :owner
RETURNING request_id

-- name: touch_requests
UPDATE requests SET
    changed_at_ms = batch.changed_at_ms,
    outcome = coalesce(batch.outcome, requests.outcome),
    stored_bytes = requests.stored_bytes + batch.stored_bytes
FROM (
    SELECT
        json_extract(value, '$[0]') AS request_id,
        json_extract(value, '$[2]') AS changed_at_ms,
        json_extract(value, '$[3]') AS outcome,
        json_extract(value, '$[4]') AS stored_bytes
    FROM json_each(:requests)
    WHERE json_extract(value, '$[1]') IS NULL
) AS batch
WHERE requests.request_id = batch.request_id AND requests.owner = :owner
RETURNING requests.request_id

-- name: insert_events
INSERT INTO events (owner, number, request_id, kind, at_ms, attempt_id, replica, detail)
SELECT
    :owner,
    json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]'),
    json_extract(value, '$[3]'),
    json_extract(value, '$[4]'),
    json_extract(value, '$[5]'),
    json_extract(value, '$[6]')
FROM json_each(:events)
WHERE true
ORDER BY key
ON CONFLICT (owner, number) DO NOTHING

-- name: select_events
SELECT request_id, kind, at_ms, attempt_id, replica, detail FROM events
WHERE request_id IN (SELECT value FROM json_each(:request_ids))
ORDER BY request_id, position

-- name: select_requests
SELECT request_id FROM requests
WHERE
    admitted_at_ms >= :since_ms
    AND (:outcome IS NULL OR coalesce(outcome, 'open') = :outcome)
ORDER BY admitted_at_ms DESC, request_id DESC
LIMIT :rows_max

-- name: select_histories
SELECT
    request_id,
    outcome IS NULL AND EXISTS (
        SELECT 1 FROM processors
        WHERE processor_id = requests.owner AND alive_until_ms > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
    )
FROM requests
WHERE request_id > :after
ORDER BY request_id
LIMIT :rows_max

-- name: select_lost_requests
SELECT request_id FROM requests
WHERE
    outcome IS NULL
    AND owner <> :owner
    AND NOT EXISTS (
        SELECT 1 FROM processors
        WHERE processor_id = requests.owner AND alive_until_ms > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
    )
ORDER BY request_id
LIMIT :rows_max

-- name: lock_request
SELECT
    outcome IS NULL,
    owner = :owner OR EXISTS (
        SELECT 1 FROM processors
        WHERE processor_id = requests.owner AND alive_until_ms > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
    )
FROM requests
WHERE request_id = :request_id

-- name: take_request
UPDATE requests SET owner = :owner, outcome = NULL WHERE request_id = :request_id

-- name: open_request
INSERT INTO requests (request_id, owner, admitted_at_ms, changed_at_ms) VALUES (:request_id, :owner, :at_ms, :at_ms)
ON CONFLICT (request_id) DO UPDATE SET owner = excluded.owner, outcome = NULL, changed_at_ms = excluded.changed_at_ms

-- name: delete_request
DELETE FROM requests WHERE request_id = :request_id AND owner = :owner

-- name: set_outcome
UPDATE requests SET outcome = :outcome WHERE request_id = :request_id AND owner = :owner

-- name: clock
SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)

-- name: insert_key
INSERT INTO idempotency_keys (key_hash, fingerprint, request_id, expires_at_ms)
VALUES (:key_hash, :fingerprint, :request_id, :expires_at_ms)
ON CONFLICT (key_hash) DO NOTHING
RETURNING request_id

-- name: lock_key
SELECT request_id, fingerprint, expires_at_ms FROM idempotency_keys WHERE key_hash = :key_hash

-- name: rebind_key
UPDATE idempotency_keys SET fingerprint = :fingerprint, request_id = :request_id, expires_at_ms = :expires_at_ms
WHERE key_hash = :key_hash

-- name: renew_key
UPDATE idempotency_keys SET expires_at_ms = :expires_at_ms WHERE key_hash = :key_hash

-- name: insert_answer
INSERT INTO answers (request_id, status, headers, body) VALUES (:request_id, :status, :headers, :body)
ON CONFLICT (request_id) DO UPDATE SET status = excluded.status, headers = excluded.headers, body = excluded.body

-- name: add_stored_bytes
UPDATE requests SET stored_bytes = stored_bytes + :stored_bytes WHERE request_id = :request_id AND owner = :owner
RETURNING request_id

-- name: select_answer
SELECT status, headers, body FROM answers WHERE request_id = :request_id

-- name: insert_text
INSERT INTO texts (request_id, request, answer) VALUES (:request_id, :request, :answer)
ON CONFLICT (request_id) DO UPDATE SET request = excluded.request, answer = excluded.answer

-- name: select_text
SELECT request, answer FROM texts WHERE request_id = :request_id

-- name: delete_expired_keys
DELETE FROM idempotency_keys WHERE key_hash IN (
    SELECT key_hash FROM idempotency_keys
    WHERE expires_at_ms <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
    LIMIT :rows_max
)

-- name: select_aged_requests
SELECT request_id FROM requests
WHERE
    admitted_at_ms < :before_ms
    AND outcome IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM idempotency_keys WHERE idempotency_keys.request_id = requests.request_id)
ORDER BY admitted_at_ms
LIMIT :rows_max

-- name: stored_bytes
SELECT coalesce(sum(stored_bytes), 0) FROM requests

-- name: select_oldest_requests
SELECT request_id, stored_bytes FROM requests
WHERE
    outcome IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM idempotency_keys WHERE idempotency_keys.request_id = requests.request_id)
ORDER BY admitted_at_ms
LIMIT :rows_max

-- name: delete_requests
DELETE FROM requests WHERE request_id IN (SELECT value FROM json_each(:request_ids))

-- name: delete_events
DELETE FROM events WHERE request_id IN (SELECT value FROM json_each(:request_ids))

-- name: delete_answers
DELETE FROM answers WHERE request_id IN (SELECT value FROM json_each(:request_ids))

-- name: delete_texts
DELETE FROM texts WHERE request_id IN (SELECT value FROM json_each(:request_ids))
