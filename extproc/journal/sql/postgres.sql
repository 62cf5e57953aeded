-- name: store_batch
WITH batch AS (
    SELECT
        value ->> 0 AS request_id,
        (value ->> 1)::bigint AS admitted_at_ms,
        (value ->> 2)::bigint AS changed_at_ms,
        value ->> 3 AS outcome,
        (value ->> 4)::bigint AS stored_bytes
    FROM json_array_elements(:requests::json) AS row (value)
),
admitted AS (
    INSERT INTO requests (request_id, owner, admitted_at_ms, changed_at_ms, outcome, stored_bytes)
    SELECT request_id, :owner, admitted_at_ms, changed_at_ms, outcome, stored_bytes FROM batch WHERE admitted_at_ms IS NOT NULL
    ON CONFLICT (request_id) DO UPDATE SET
        changed_at_ms = excluded.changed_at_ms,
        outcome = coalesce(excluded.outcome, requests.outcome),
        stored_bytes = requests.stored_bytes + excluded.stored_bytes
    WHERE requests.owner = :owner
    RETURNING request_id
),
touched AS (
    UPDATE requests SET
        changed_at_ms = batch.changed_at_ms,
        outcome = coalesce(batch.outcome, requests.outcome),
        stored_bytes = requests.stored_bytes + batch.stored_bytes
    FROM batch
    WHERE requests.request_id = batch.request_id AND batch.admitted_at_ms IS NULL AND requests.owner = :owner
    RETURNING requests.request_id
),
owned AS (
    SELECT request_id FROM admitted
    UNION ALL
    SELECT request_id FROM touched
),
stored AS (
    INSERT INTO events (owner, number, request_id, kind, at_ms, attempt_id, replica, detail)
    SELECT
        :owner,
        (value ->> 0)::bigint,
        value ->> 1,
        value ->> 2,
        (value ->> 3)::bigint,
        value ->> 4,
        value ->> 5,
        value ->> 6
    FROM json_array_elements(:events::json) WITH ORDINALITY AS row (value, place)
    WHERE value ->> 1 IN (SELECT request_id FROM owned)
    ORDER BY place
    ON CONFLICT (owner, number) DO NOTHING
)
SELECT request_id FROM owned

-- name: select_events
SELECT request_id, kind, at_ms, attempt_id, replica, detail FROM events
WHERE request_id IN (SELECT json_array_elements_text(:request_ids::json))
ORDER BY request_id, position

-- name: select_requests
SELECT request_id FROM requests
WHERE
    admitted_at_ms >= :since_ms
    AND (:outcome::text IS NULL OR coalesce(outcome, 'open') = :outcome)
ORDER BY admitted_at_ms DESC, request_id DESC
LIMIT :rows_max

-- name: select_histories
SELECT
    request_id,
    outcome IS NULL AND EXISTS (
        SELECT 1 FROM processors
        WHERE processor_id = requests.owner AND alive_until_ms > (extract(epoch FROM clock_timestamp()) * 1000)::bigint
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
        WHERE processor_id = requests.owner AND alive_until_ms > (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    )
ORDER BY request_id
LIMIT :rows_max
FOR UPDATE SKIP LOCKED

-- name: lock_request
SELECT
    outcome IS NULL,
    owner = :owner OR EXISTS (
        SELECT 1 FROM processors
        WHERE processor_id = requests.owner AND alive_until_ms > (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    )
FROM requests
WHERE request_id = :request_id
FOR UPDATE

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
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- name: insert_key
INSERT INTO idempotency_keys (key_hash, fingerprint, request_id, expires_at_ms)
VALUES (:key_hash, :fingerprint, :request_id, :expires_at_ms)
ON CONFLICT (key_hash) DO NOTHING
RETURNING request_id

-- name: lock_key
SELECT request_id, fingerprint, expires_at_ms FROM idempotency_keys WHERE key_hash = :key_hash FOR UPDATE

-- name: rebind_key
UPDATE idempotency_keys SET fingerprint = :fingerprint, request_id = :request_id, expires_at_ms = :expires_at_ms
WHERE key_hash = :key_hash

-- name: renew_key
UPDATE idempotency_keys SET expires_at_ms = :expires_at_ms WHERE key_hash = :key_hash

-- name: insert_answer
INSERT INTO answers (request_id, status, headers, body) VALUES (:request_id, :status, :headers, :body)
ON CONFLICT (request_id) DO UPDATE SET status = excluded.status, headers = excluded.headers, body = excluded.body

-- name: add_stored_bytes
UPDATE requests SET stored_bytes = stored_bytes + :stored_bytes::bigint WHERE request_id = :request_id AND owner = :owner
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
    WHERE expires_at_ms <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
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
SELECT coalesce(sum(stored_bytes), 0)::bigint FROM requests

-- name: select_oldest_requests
SELECT request_id, stored_bytes FROM requests
WHERE
    outcome IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM idempotency_keys WHERE idempotency_keys.request_id = requests.request_id)
ORDER BY admitted_at_ms
LIMIT :rows_max

-- name: delete_requests
DELETE FROM requests WHERE request_id IN (SELECT json_array_elements_text(:request_ids::json))

-- name: delete_events
DELETE FROM events WHERE request_id IN (SELECT json_array_elements_text(:request_ids::json))

-- name: delete_answers
DELETE FROM answers WHERE request_id IN (SELECT json_array_elements_text(:request_ids::json))

-- name: delete_texts
DELETE FROM texts WHERE request_id IN (SELECT json_array_elements_text(:request_ids::json))
