"""The package SGLang's model registry reads: each module with an `EntryClass` takes the place of SGLang's class of that name."""
