"""Questions that are spoken and recognised again, to count the words that got lost."""

QUESTIONS = [
    "What is the capital of France?",
    "How long does it take to boil an egg?",
    "Can you remind me to call my mother at seven?",
    "Where did I leave my keys this morning?",
    "What will the weather be like tomorrow afternoon?",
    "How many planets are there in the solar system?",
    "Could you turn off the lights in the kitchen, please?",
    "Who wrote the play about Romeo and Juliet?",
    "Why is the sky blue during the day?",
    "What time does the next train to London leave?",
    "Is it safe to eat bread that is three days old?",
    "How do I get to the nearest hospital from here?",
    "What is the difference between a cat and a dog?",
    "Can you tell me a short story about a dragon?",
    "How far away is the moon from the earth?",
    "Would you please repeat the last sentence?",
    "Which river flows through the city of Vienna?",
    "What should I cook for dinner tonight?",
    "Do you know when the library opens on Sunday?",
    "How much does a ticket to the museum cost?",
]
