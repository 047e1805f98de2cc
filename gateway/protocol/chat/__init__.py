"""Chat Completions as another way to say the same: a request becomes one of the Responses API, its answer is put back.

Pure. What the Responses API has no place for is refused with the name of the parameter, and nothing is left out in
silence. `request` translates what the client sends, `stream` and `completion` what the account answers.
"""
