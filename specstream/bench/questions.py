"""Questions of a measured conversation; all differ, as lookup would copy an answer given before."""

from __future__ import annotations

__all__ = ["ALOUD", "FIRST", "WRITTEN"]

FIRST = "Hello! Who are you?"
"""Asked first, to warm everything up."""

WRITTEN = (
    "What is the capital of France?",
    "Can you explain how a rainbow is made?",
    "Why do cats sleep so much during the day?",
    "Tell me a short story about a lighthouse.",
    "What should I cook with potatoes and eggs?",
    "How do I write a polite letter to my landlord?",
    "What is the difference between weather and climate?",
    "Which season do you like best, and why?",
    "How does a bicycle stay upright?",
    "Give me three ideas for a rainy afternoon.",
    "What happens to the moon during an eclipse?",
    "How can I learn the names of my new colleagues?",
    "Why is the sea salty?",
    "Describe a morning in a small fishing village.",
    "What is a good way to start a speech?",
    "How do birds find their way in winter?",
    "What does a conductor do in an orchestra?",
    "Could you recommend a game for two people?",
    "Why do leaves change their colour in autumn?",
    "How long should I boil rice?",
)
"""Asked in writing."""

ALOUD = (
    "What is the longest river in the world?",
    "How does a vaccine work?",
    "Can you tell me something about the planet Mars?",
    "What do bees do in winter?",
    "How do I get a coffee stain out of a shirt?",
    "Who invented the telephone?",
    "What should I pack for a week in the mountains?",
    "Why is the sky blue?",
    "How is cheese made?",
    "Tell me a joke about a dog.",
    "What is a good breakfast before a long walk?",
    "How do airplanes stay in the air?",
    "Why do people yawn?",
    "Describe the smell of the sea.",
    "How can I sleep better at night?",
    "What is the difference between a crocodile and an alligator?",
    "How do I plant tomatoes?",
    "What makes a good friend?",
    "Where does chocolate come from?",
    "How can I learn to play the guitar?",
)
"""Asked aloud."""
