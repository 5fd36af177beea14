"""What people may ask of a model that knows only shapes, colours, digits and short words."""

from models.training.rng import SampleRng, Templates

_COUNTRIES = (
    *("France", "Germany", "Japan", "Italy", "Brazil", "Canada", "India", "China", "Spain", "Egypt", "Kenya", "Peru"),
    *("Norway", "Poland", "Greece", "Cuba", "Chile", "Turkey", "Sweden", "Austria", "Mexico", "the USA", "Iran"),
)
_PEOPLE = (
    *("Einstein", "Mozart", "Napoleon", "Shakespeare", "Picasso", "the president", "the king", "Gandhi", "Newton"),
    *("Beethoven", "Cleopatra", "Darwin", "Elvis", "Marie Curie", "my neighbour", "the pope", "Plato"),
)
_SUBJECTS = (
    *("love", "the sea", "history", "physics", "the war", "money", "music", "football", "cooking", "the weather"),
    *("politics", "art", "time", "dinosaurs", "space", "the moon", "cars", "trains", "computers", "bread", "health"),
    *("quantum physics", "gravity", "religion", "climate change", "the stock market", "chess", "biology", "winter"),
)
_LANGUAGES = ("French", "German", "Spanish", "Italian", "Chinese", "Latin", "Japanese", "Russian", "English", "Arabic")
_PHRASES = ("good morning", "I love you", "thank you", "the house is old", "where is the station", "see you soon")
_CREATURES = (
    *("dog", "cat", "person", "man", "woman", "car", "bird", "flower", "building", "animal", "plant", "child"),
    *("horse", "actor", "city", "street", "plane", "meal", "fish", "bottle", "chair", "phone", "landscape"),
)

OUT_OF_SCOPE = Templates(
    learnt=(
        "(What is|What's) the (capital|population|language|currency|flag|president|history|size) of {country}?",
        "(Where is|How big is|How far is|Tell me about|Who rules) {country}?",
        "Who (is|was) {person}?",
        "(When was {person} born|What did {person} do|Tell me about {person}|How old is {person})?",
        "(Write|Tell me|Give me|Compose) (a poem|a story|an essay|a joke|a song|a letter|a speech) (about {subject}|)",
        "(Explain|What is|Tell me about|Do you know anything about|What do you think about) {subject}(.|?)",
        "(Translate|How do you say|Say) '{phrase}' (in|into|to) {language}.",
        "(Do you speak|Can you speak|Can you write) {language}?",
        "(Write|Give me|Show me) (a program|code|a function|a script) (in Python|in C|in Java|that sorts a list|)",
        "What is {a} (plus|times|minus|divided by) {b}?",
        "(Calculate|Compute|How much is) {a} (+|*|-|/) {b}",
        "(What|Which) (breed|species|kind|model|sort) (is|of) (the|this) {creature}?",
        "(Who|What kind of person) is the (man|woman|person|child|actor) in (this|the) (picture|photo|image)?",
        "(How old|How tall|How heavy|How expensive) is (the|this) {creature}?",
        "(What is the weather|Will it rain|How warm is it) (today|tomorrow|in {country}|now|)?",
        "What (time|day|year|date) is it( now| today|)?",
        "(What is|What's) (the news|the meaning of life|your favourite film|the best car|my name)?",
        "(Should I|Can I|How do I|How can I) (buy a house|learn {language}|fix my car|bake bread|get rich)?",
        "(Why is the sky blue|How does a car work|Why do birds sing|How do planes fly|What is the speed of light)?",
        "(Recommend|Suggest) (a book|a film|a restaurant|a hotel|a game) (about {subject}|in {country}|)",
        "(Summarise|Summarize) (this article|the book|the text about {subject}|the news).",
        "(Which|What) (brand|painter|artist|company|team) (is this|made this|painted this|is that)?",
        "(How does the {creature} feel|What is the {creature} doing|What emotion does the {creature} show)?",
        "(Play|Sing|Draw|Paint) (a song|me something|a picture of {subject}|a {creature}).",
        "(In which|What) (city|country|year|museum) was this (photo|picture) taken?",
        "(Is|Are) (the|this) (meal|food|dish|mushroom|plant|berry) (healthy|poisonous|good|safe)?",
    ),
    held_out=(
        "Which city is the capital of {country}?",
        "What do you know about {person}?",
        "Please write something about {subject}.",
        "How would one say '{phrase}' in {language}?",
        "Can you solve {a} + {b}?",
        "What kind of {creature} is this?",
        "Who won the world cup in {country}?",
        "How do I cook rice?",
    ),
)


def draw_out_of_scope(rng: SampleRng) -> str:
    """A question, or a wish."""
    return rng.ask(
        OUT_OF_SCOPE,
        country=rng.one(_COUNTRIES),
        person=rng.one(_PEOPLE),
        subject=rng.one(_SUBJECTS),
        language=rng.one(_LANGUAGES),
        phrase=rng.one(_PHRASES),
        creature=rng.one(_CREATURES),
        a=rng.source.randint(2, 99),
        b=rng.source.randint(2, 99),
    )
