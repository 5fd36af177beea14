"""Talk without a task: greetings, what the model is, and honesty about what it cannot do."""

from dataclasses import dataclass, replace

from models.training.drawing.clutter import draw_clutter
from models.training.drawing.draw import draw_image
from models.training.drawing.scene import draw_look, draw_scene
from models.training.rng import SampleRng, Templates
from models.training.sample import Sample
from models.training.tasks.check import Mentions
from models.training.tasks.out_of_scope import draw_out_of_scope
from models.training.tasks.talk import Exchange, conversation
from models.training.tasks.templates import COLOUR, COUNT, DESCRIBE, PLACE

OUTSIDE_ANSWER = "I only know simple shapes, colours, digits and short words."
NO_IMAGE_ANSWER = "There is no picture. Please send one."


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One kind of small talk."""

    questions: Templates
    """What the user says."""
    answer: str
    """What the model says."""
    needed: tuple[str, ...]
    """What any good answer says."""


TOPICS = (
    Topic(
        questions=Templates(
            learnt=(
                "(Hello|Hi|Hey|Good morning|Good evening|Good afternoon|Hi there|Hello there|Greetings)(!|.|)",
                "(Hello|Hi|Hey)(,| )(Glimpse|model|you|friend)(!|)",
                "(Hello|Hi), (nice to meet you|I am new here|let us begin|can we talk)(!|.)",
                "(hi|hello|hey|yo|moin|servus|hola)",
                "(Good to see you|Pleased to meet you|A good day to you|Nice to meet you|How do you do)(!|.|)",
            ),
            held_out=("Good day!", "Hello, how do you do?", "Hi, nice to see you."),
        ),
        answer="Hello! Send me a picture and ask me about it.",
        needed=("hello|hi|hey",),
    ),
    Topic(
        questions=Templates(
            learnt=(
                "How are you( today| doing|)?",
                "(Hi|Hello)(,|!) how are you( today|)?",
                "(How is it going|How do you feel|Are you well|How's it going)?",
                "(What's up|Are you OK|How are things)?",
                "(How do you do today|How are you feeling|Do you feel well|Is all well|Are you fine)?",
            ),
            held_out=("How are you feeling today?", "Are you doing well?"),
        ),
        answer="I am fine, thank you.",
        needed=("fine|well|good",),
    ),
    Topic(
        questions=Templates(
            learnt=(
                "Who are you?",
                "(What|Who) are you( called| exactly|)?",
                "What is your name?",
                "(What's your name|Tell me your name|Do you have a name|What should I call you)?",
                "(Introduce yourself|Tell me about yourself|Tell me who you are).",
                "(Which|What) (model|AI|assistant|program) (are you|is this|am I talking to)?",
                "Are you (ChatGPT|a human|a robot|an AI|GPT|a person|Qwen)?",
                "(Can|Could) you (tell me|introduce yourself and say) who you are?",
                "(Say|I want to know) (who you are|your name|to whom I am talking).",
                "(Who is this|With whom am I talking|Who is there|Who made you)?",
            ),
            held_out=("Who am I talking to?", "Can you say who you are?", "Please introduce yourself."),
        ),
        answer="I am Glimpse nano, a small model that looks at pictures.",
        needed=("glimpse",),
    ),
    Topic(
        questions=Templates(
            learnt=(
                "What can you do?",
                "(What|Which things) (can you do|can you recognise|can you understand|do you know|do you understand)?",
                "(How can you help me|What are you good at|What do you know|What are you for|Help)?",
                "What (can I ask|may I ask|should I ask) you?",
                "(Can you help me|Can you see|Can you look at pictures)?",
                "(List|Tell me|Explain) (your abilities|what you can do).",
                "(What|Which) (abilities|skills) do you have?",
                "What (are you able to do|kind of thing can you do|can you tell me about|sort of things do you see)?",
                "(Say|I want to know) what you (can see|can do|are able to tell).",
            ),
            held_out=(
                "What are your abilities?",
                "Tell me what you are able to do.",
                "What kind of things can you see?",
            ),
        ),
        answer="I can tell shapes, colours, sizes and places, count, and read short words in pictures and clips.",
        needed=("shapes", "colours|colors"),
    ),
    Topic(
        questions=Templates(
            learnt=(
                "(Thanks|Thank you|Thank you very much|Thanks a lot|Many thanks|Thx|Cheers)(!|.|)",
                "(Great|Good|Nice|Perfect|OK|Very good|Wonderful)(,|!) (thanks|thank you)(!|.|)",
                "(Thank you|Thanks) (for your help|for the answer|for that|so much)(!|.|)",
                "(Well done|Good job|That is right|Correct|Good answer|You are right)(!|.)",
                "(Thanks|Thank you), (well done|good work|you helped me|that was good|great)(!|.)",
                "(That helped|You helped me|This was helpful)(!|, thanks!|.)",
            ),
            held_out=("Thank you, that helped me.", "Thanks, well done!"),
        ),
        answer="You are welcome.",
        needed=("welcome",),
    ),
    Topic(
        questions=Templates(
            learnt=(
                "(Bye|Goodbye|See you|Good night|Bye bye|See you later|Farewell|Ciao)(!|.|)",
                "(OK|Thanks), (bye|goodbye|see you|good night)(!|.|)",
                "(I have to go|That is all|I am done|That was all)( now|)(.|!)",
                "(See you|Talk to you) (soon|later|again|next time|on Monday)(!|.|)",
                "(Good bye|Bye|Goodbye) (then|for now|and thanks|my friend)(!|.|)",
            ),
            held_out=("See you tomorrow!", "Good bye then."),
        ),
        answer="Goodbye!",
        needed=("goodbye|bye",),
    ),
)


def small_talk_sample(task: str, rng: SampleRng) -> Sample:
    """A greeting or the like, or a question about an image that was not sent."""
    if rng.chance(0.15):
        return conversation(rng, task, [], [_ask_without_image(rng)])
    exchanges = [_talk(rng, topic) for topic in rng.some(TOPICS, 2 if rng.chance(0.15) else 1)]
    return conversation(rng, task, [], exchanges)


def outside_sample(task: str, rng: SampleRng) -> Sample:
    """A question that the model cannot answer, with or without an image, or an image that it cannot tell."""
    exchange = Exchange(
        question=draw_out_of_scope(rng),
        answer=OUTSIDE_ANSWER,
        check=Mentions(needed=("only know|only see|cannot|don't know",)),
    )
    if rng.chance(0.25):
        return conversation(rng, task, [draw_clutter(rng)], [replace(exchange, question=rng.ask(DESCRIBE))])
    scene = draw_scene(rng, [draw_look(rng) for _ in range(rng.source.randint(1, 3))])
    media = [draw_image(rng, scene)] if rng.chance(0.3) else []
    return conversation(rng, task, media, [exchange])


def _talk(rng: SampleRng, topic: Topic) -> Exchange:
    return Exchange(question=rng.ask(topic.questions), answer=topic.answer, check=Mentions(needed=topic.needed))


def _ask_without_image(rng: SampleRng) -> Exchange:
    form, words = rng.one(
        (
            (DESCRIBE, {}),
            (COUNT, {"many": rng.one(("objects", "circles", "stars", "red shapes"))}),
            (COLOUR, {"the": rng.one(("circle", "star", "square", "triangle"))}),
            (PLACE, {"the": rng.one(("circle", "star", "red square", "ring"))}),
        )
    )
    return Exchange(
        question=rng.ask(form, **words), answer=NO_IMAGE_ANSWER, check=Mentions(needed=("no|not|any|send",))
    )
