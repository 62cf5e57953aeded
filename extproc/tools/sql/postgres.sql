-- name: clock
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- name: insert_call
INSERT INTO tool_calls (key_hash, call_key, tool, request_id, fingerprint, state, owner, started_at_ms, expires_at_ms)
VALUES (:key_hash, :call_key, :tool, :request_id, :fingerprint, 'running', :owner, :started_at_ms, :expires_at_ms)
ON CONFLICT (key_hash) DO NOTHING
RETURNING key_hash

-- name: lock_call
SELECT
    fingerprint,
    state,
    expires_at_ms,
    EXISTS (
        SELECT 1 FROM processors
        WHERE processor_id = tool_calls.owner AND alive_until_ms > (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    ),
    status,
    headers,
    body,
    why
FROM tool_calls
WHERE key_hash = :key_hash
FOR UPDATE

-- name: free_call
DELETE FROM tool_calls WHERE key_hash = :key_hash AND ((state = 'running' AND owner = :owner) OR state = 'unknown')

-- name: delete_expired_call
DELETE FROM tool_calls WHERE key_hash = :key_hash AND expires_at_ms = :expires_at_ms

-- name: end_call
UPDATE tool_calls SET
    state = :state,
    ended_at_ms = :ended_at_ms,
    expires_at_ms = :expires_at_ms,
    why = :why,
    status = :status,
    headers = :headers,
    body = :body
WHERE key_hash = :key_hash AND ((state = 'running' AND owner = :owner) OR state = 'unknown')

-- name: lose_call
UPDATE tool_calls SET state = 'unknown', ended_at_ms = :ended_at_ms, why = :why
WHERE key_hash = :key_hash AND state = 'running'

-- name: lose_calls_of_the_dead
UPDATE tool_calls SET
    state = 'unknown',
    ended_at_ms = (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    why = :why
WHERE
    state = 'running'
    AND NOT EXISTS (
        SELECT 1 FROM processors
        WHERE processor_id = tool_calls.owner AND alive_until_ms > (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    )
RETURNING call_key

-- name: settle_carried_out
UPDATE tool_calls SET
    state = 'carried_out',
    expires_at_ms = :expires_at_ms,
    why = :why,
    status = :status,
    headers = :headers,
    body = :body
WHERE call_key = :call_key AND state = 'unknown'
RETURNING call_key

-- name: settle_not_carried_out
DELETE FROM tool_calls WHERE call_key = :call_key AND state = 'unknown'
RETURNING call_key

-- name: count_calls
SELECT count(*) FROM tool_calls WHERE request_id = :request_id

-- name: select_calls
SELECT call_key, tool, request_id, state, started_at_ms, ended_at_ms, why, status, length(body) FROM tool_calls
WHERE :state::text IS NULL OR state = :state
ORDER BY started_at_ms DESC, call_key
LIMIT :rows_max

-- name: delete_expired_calls
DELETE FROM tool_calls WHERE expires_at_ms <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint AND state <> 'running'

-- name: answer_bytes
SELECT coalesce(sum(length(body)), 0)::bigint FROM tool_calls

-- name: forget_answers
UPDATE tool_calls SET body = NULL, headers = NULL, status = NULL WHERE key_hash IN (
    SELECT key_hash FROM tool_calls WHERE body IS NOT NULL ORDER BY started_at_ms LIMIT :rows_max
)
