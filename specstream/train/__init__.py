"""Training of drafts and drafting heads for a target, on the target's own replies.

``specstream.train.run.train(TrainOptions(...))`` does all of it, on the calling thread.
"""
