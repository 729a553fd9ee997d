//! A batch of reports -> one transaction -> an ack; then the experiment is told what is new.
