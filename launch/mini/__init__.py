"""Makes clef-mini, the small release that is served where there is neither a GPU nor a download: records, training, export."""
