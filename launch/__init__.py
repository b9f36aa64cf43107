"""clef-serve: chooses device and checkpoint, starts the engine and the front, and stops both."""
