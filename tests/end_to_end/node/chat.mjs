// What a program of the official Node SDK does with chat completions, streamed and not. It prints one JSON object.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0 });
const model = "gpt-5.5";
const hi = { role: "user", content: "hi" };
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", parameters: schema } }];
const asked = { role: "user", content: 'call: weather {"city":"Oslo"}\ncall: weather {"city":"Rome"}' };
const place = { type: "json_schema", json_schema: { name: "place", schema, strict: true } };

async function whole(request) {
  return client.chat.completions.create({ model, messages: [hi], ...request });
}

async function streamed(request) {
  const options = { model, messages: [hi], stream_options: { include_usage: true }, ...request };
  return client.chat.completions.stream(options).finalChatCompletion();
}

async function refused(request) {
  try {
    await whole(request);
  } catch (error) {
    return { status: error.status, code: error.code, param: error.param };
  }
}

async function toolLoop(ask) {
  const first = await ask({ messages: [asked], tools });
  const calls = first.choices[0].message.tool_calls;
  const outputs = calls.map((call) => ({
    role: "tool",
    tool_call_id: call.id,
    content: "rain in " + JSON.parse(call.function.arguments).city,
  }));
  const said = { role: "assistant", content: null, tool_calls: calls.map(({ id, type, function: { name, arguments: given } }) => ({ id, type, function: { name, arguments: given } })) };
  const last = await ask({ messages: [asked, said, ...outputs], tools });
  return { reason: first.choices[0].finish_reason, calls: calls.length, answer: last.choices[0].message.content };
}

async function everything(ask) {
  const plain = await ask({});
  const likely = await ask({ logprobs: true, top_logprobs: 1 });
  return {
    content: plain.choices[0].message.content,
    reason: plain.choices[0].finish_reason,
    usage: plain.usage.total_tokens > 0,
    tools: await toolLoop(ask),
    schema: (await ask({ response_format: place })).choices[0].message.content,
    refusal: (await ask({ metadata: { sim_refusal: "No." } })).choices[0].message.refusal,
    stop: (await ask({ stop: " ada" })).choices[0].message.content,
    tokens: likely.choices[0].logprobs.content.length,
  };
}

async function chunks() {
  const stream = await client.chat.completions.create({ model, messages: [hi], stream: true });
  const texts = [];
  for await (const chunk of stream) texts.push(chunk.choices[0]?.delta?.content ?? null);
  return texts;
}

async function responses() {
  const made = await client.responses.create({ model, input: "hi" });
  const again = await client.responses.retrieve(made.id);
  const items = await client.responses.inputItems.list(made.id);
  await client.responses.delete(made.id);
  const gone = await client.responses.retrieve(made.id).catch((error) => error.status);
  return { text: again.output_text, items: items.data.length, gone };
}

console.log(
  JSON.stringify({
    whole: await everything(whole),
    streamed: await everything(streamed),
    chunks: await chunks(),
    refused: await refused({ n: 2 }),
    limited: (await whole({ max_completion_tokens: 2 })).choices[0].finish_reason,
    responses: await responses(),
  }),
);
