-- What was asked and answered, only of routes that asked for `store_text`.
CREATE TABLE texts (
    request_id TEXT PRIMARY KEY,
    request BLOB NOT NULL,
    answer BLOB NOT NULL
);
