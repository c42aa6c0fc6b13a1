class ReferenceVoice:
    pass
