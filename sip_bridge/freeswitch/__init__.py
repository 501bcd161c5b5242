"""FreeSWITCH by its event socket: plays the speech files of a call in order."""
