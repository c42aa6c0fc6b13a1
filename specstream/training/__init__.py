"""Training of drafts and drafting heads for a target, on the target's own replies.

``specstream.training.run.train(TrainOptions(...))`` runs a whole training, on the calling thread.
"""
