"""What SGLang's model registry reads: a module with an `EntryClass` takes the place of SGLang's class of that name."""
