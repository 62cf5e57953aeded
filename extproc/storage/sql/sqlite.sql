-- name: read_version
SELECT max(version) FROM schema_versions

-- name: keep_alive
INSERT INTO processors (processor_id, alive_until_ms)
VALUES (:processor_id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + :ttl_ms)
ON CONFLICT (processor_id) DO UPDATE SET alive_until_ms = excluded.alive_until_ms

-- name: leave
DELETE FROM processors WHERE processor_id = :processor_id

-- name: forget_processors
DELETE FROM processors WHERE alive_until_ms < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - :kept_ms

-- name: select_processors
SELECT processor_id FROM processors ORDER BY processor_id
