-- Indexes for the queries of the portal and the API.

-- 1: a final result or a verdict. A list of trials reads only these reports.
ALTER TABLE report ADD COLUMN sums_up INTEGER NOT NULL DEFAULT 0;

UPDATE report SET sums_up = 1
WHERE lane = 0
  AND (kind = 'ended'
       OR (kind = 'metric'
           AND CASE WHEN json_valid(body) THEN json_extract(body, '$.type') = 'final' END));

CREATE INDEX report_that_sums_up ON report (attempt, seq) WHERE sums_up = 1;

CREATE INDEX log_chunk_of_stream ON log_chunk (attempt, stream, offset_bytes);
