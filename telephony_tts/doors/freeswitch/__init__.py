"""FreeSWITCH with mod_audio_stream, a media leg."""
