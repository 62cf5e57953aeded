-- name: read_version
SELECT max(version) FROM schema_versions

-- name: keep_alive
INSERT INTO processors (processor_id, alive_until_ms)
VALUES (:processor_id, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + :ttl_ms::bigint)
ON CONFLICT (processor_id) DO UPDATE SET alive_until_ms = excluded.alive_until_ms

-- name: leave
DELETE FROM processors WHERE processor_id = :processor_id

-- name: forget_processors
DELETE FROM processors WHERE alive_until_ms < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - :kept_ms::bigint

-- name: select_processors
SELECT processor_id FROM processors ORDER BY processor_id
