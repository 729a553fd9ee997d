-- The timeline of a trial contains each attempt's facts except metrics. The index skips metrics, which are far more
-- numerous.
CREATE INDEX report_beside_metrics ON report (attempt, seq) WHERE lane = 0 AND kind <> 'metric';
