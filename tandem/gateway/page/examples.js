// Prompts that show where drafts pay, and where they don't. why: one sentence for the user.

const CODE = `def total(values, start=0):
    result = start
    for value in values:
        if value is None:
            continue
        result += value
    return result

`;

const FORM = `<form action="/orders" method="post">
  <label>Name: <input name="name" required></label>
  <label>Street: <input name="street" required></label>
  <label>City: <input name="city" required></label>
  <button>Order</button>
</form>
`;

const schema = (...names) => ({
  type: "object",
  properties: Object.fromEntries(names.map((name) => [name, { type: "string", maxLength: 40 }])),
  required: names,
});

export const CHAT = [
  {
    title: "Edit this code",
    why: "Most of the answer repeats the code in the prompt, so guesses can copy it.",
    prompt: `Add a field for the country to this form. Show only the form:\n\n\`\`\`html\n${FORM}\`\`\``,
  },
  {
    title: "Fill in a form",
    why: "The schema fixes the names and the punctuation, so those tokens need no step of the model.",
    prompt: "Ada Lovelace was born in London in 1815. She was a mathematician and wrote the first program. Fill in the form.",
    schema: schema("first_name", "last_name", "year_of_birth", "place_of_birth", "profession", "known_for"),
  },
  {
    title: "Repeat with a change",
    why: "The answer copies whole sentences, and a guess only fails where a word changes.",
    prompt: "Correct the spelling of this text:\n\nThe city has opend a new library by the river. It has two floors, a reading room and a garden. The reading room is open every day from nine to six, the garden until the sun sets.",
  },
  {
    title: "Write something new",
    why: "Drafts don't pay here: new text repeats little, so most guesses are rejected.",
    prompt: "Write three sentences about a lighthouse keeper and the sea.",
  },
];

export const COMPLETION = [
  {
    title: "Edit this code",
    why: "Most of the answer repeats the code in the prompt, so most guesses are right.",
    prompt: `# Before\n${CODE}\n# After, with the name changed\ndef summed(values, start=0):\n    result = start\n    for value`,
  },
  {
    title: "Write the next method",
    why: "The methods resemble each other, so a guess can copy from the ones above.",
    prompt: "class Point:\n    def __init__(self, x, y, z):\n        self.x = x\n        self.y = y\n        self.z = z\n\n    def __add__(self, other):\n        return Point(self.x + other.x, self.y + other.y, self.z + other.z)\n\n    def __sub__(self, other):\n",
  },
  {
    title: "Fill in a form",
    why: "The schema fixes the names and the punctuation, so those tokens need no step of the model.",
    prompt: "# The function's description as JSON: def read_lines(path, encoding=\"utf-8\")\n",
    schema: schema("function_name", "first_parameter", "second_parameter", "return_type"),
  },
  {
    title: "Write something new",
    why: "Drafts help less here: new code repeats little, so more guesses are rejected.",
    prompt: "def softmax(x, axis=-1):\n    \"\"\"Compute the softmax of an array along an axis.\"\"\"\n    x = np.asarray(x)\n",
  },
];
