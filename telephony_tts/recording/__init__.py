"""Records calls as two channels with a timeline, and replays them."""
