"""Pure and deterministic: no clock, thread, await, log, dice or I/O of its own; time comes in as now_s."""
