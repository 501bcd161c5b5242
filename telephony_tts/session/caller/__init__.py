"""The caller's audio: barge-in by voice, echo, silence, answering machines."""
