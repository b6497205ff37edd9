"""The embedded policy: a small, real model server on loopback, for the demo, the tests and newcomers without a GPU.

Words come from a script, numbers from a network: `tokens`, `weights` and `model` are the policy, `chat` is the prompt,
`script` says what is answered, `respond` makes the Responses object, `faults` are failures on request, `app` is the
HTTP application and `server` runs it (`run`, `start`, `running_policy`; `python -m turnkeep.serve`).

`app` and `server` need the extra `turnkeep[serve]`; the rest needs NumPy alone.
"""
