-- What an attempt told beside its metrics, which are many more: its part of a trial's timeline.
CREATE INDEX report_beside_metrics ON report (attempt, seq) WHERE lane = 0 AND kind <> 'metric';
