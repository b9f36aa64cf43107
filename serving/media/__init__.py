"""Images and videos, from what a request holds to what the engine takes. Knows nothing of HTTP routes or of the engine.

- `limits`: what is accepted, and how much of it
- `sources`, `remote`: bytes out of base64, data URLs, assets and allowed hosts
- `images`, `videos`: bytes to pixels, refused from their headers where they are too much
- `decoded`: what decoding hands over
- `processing`: pixels to prompt tokens and features, by the release's own processor
"""
