"""Images and videos, from what a request holds to what the engine takes. Knows nothing of HTTP routes or of the engine.

- `limits`, `refusal`: what is accepted, how much of it, and how a refusal says so
- `sources`, `remote`: bytes out of base64, data URLs, assets and allowed hosts
- `images`, `videos`, `video_child`: bytes to pixels, refused from their headers where they are too much
- `reader`, `memory`: all media of a request, off the event loop, in bounded memory
- `decoded`: what decoding hands over
- `processing`: pixels to prompt tokens and features, by the release's own processor
- `processed`: what processing hands to the engine
"""
