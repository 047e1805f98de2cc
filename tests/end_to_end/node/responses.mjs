// What a program of the official Node SDK does with responses, streamed and not. It prints one JSON object.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0 });
const model = "gpt-5.5";
const slow = `${model};events=20;interval=0.05`;
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const tools = [{ type: "function", name: "weather", parameters: schema, strict: true }];

async function whole(request) {
  return client.responses.create({ model, ...request });
}

async function streamed(request) {
  return client.responses.stream({ model, ...request }).finalResponse();
}

async function toolLoop(ask) {
  const first = await ask({ input: 'call: weather {"city":"Oslo"}\ncall: weather {"city":"Rome"}', tools });
  const calls = first.output.filter((item) => item.type === "function_call");
  const input = calls.map((call) => ({
    type: "function_call_output",
    call_id: call.call_id,
    output: "rain in " + JSON.parse(call.arguments).city,
  }));
  const last = await ask({ input, tools, previous_response_id: first.id });
  return { calls: calls.length, answer: last.output_text };
}

async function everything(ask) {
  const plain = await ask({ input: "hi" });
  const place = { format: { type: "json_schema", name: "place", schema, strict: true } };
  const cut = await ask({ input: "hi", max_output_tokens: 2 });
  return {
    text: plain.output_text,
    status: plain.status,
    usage: plain.usage.total_tokens > 0,
    tools: await toolLoop(ask),
    schema: (await ask({ input: "hi", text: place })).output_text,
    cut: [cut.status, cut.incomplete_details.reason],
  };
}

async function failure(work) {
  try {
    return await work();
  } catch (error) {
    return { status: error.status, code: error.code };
  }
}

async function stored() {
  const made = await client.responses.create({ model, input: "hi" });
  const again = await client.responses.retrieve(made.id);
  const types = [];
  for await (const event of await client.responses.retrieve(made.id, { stream: true })) types.push(event.type);
  const items = await client.responses.inputItems.list(made.id);
  await client.responses.delete(made.id);
  const gone = await failure(() => client.responses.retrieve(made.id));
  return { text: again.output_text, first: types[0], last: types.at(-1), items: items.data.length, gone: gone.status };
}

async function background() {
  const numbers = [];
  let id;
  for await (const event of await client.responses.create({ model: slow, input: "hi", background: true, stream: true })) {
    id ??= event.response?.id;
    if (numbers.push(event.sequence_number) === 5) break;
  }
  let last;
  const rest = await client.responses.retrieve(id, { stream: true, starting_after: numbers.at(-1) });
  for await (const event of rest) {
    numbers.push(event.sequence_number);
    last = event.type;
  }
  const long = await client.responses.create({ model: `${model};events=100;interval=0.1`, input: "hi", background: true });
  const cancelled = await client.responses.cancel(long.id);
  return { whole: numbers.every((number, place) => number === place), last, began: long.status, cancelled: cancelled.status };
}

const listed = [];
for await (const each of client.models.list()) listed.push(each.id);

console.log(
  JSON.stringify({
    whole: await everything(whole),
    streamed: await everything(streamed),
    stored: await stored(),
    background: await background(),
    models: listed.includes(model),
    refused: await failure(() => whole({ input: "hi", no_such_parameter: 1 })),
    stranger: await failure(() => client.withOptions({ apiKey: "sk-other" }).responses.create({ model, input: "hi" })),
  }),
);
