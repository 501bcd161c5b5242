"""The native media leg, for a softswitch of your own."""
