"""The state of one call: turns, playout, marks, heard text. No I/O, no clock, no tasks."""
