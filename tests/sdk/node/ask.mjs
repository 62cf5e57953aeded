// One question through the official Node SDK. Reads {url, api, stream, leave} from its argument, writes {text, error} as one line.
// `leave`: close the stream at its first text.
import OpenAI from 'openai';

const { url, api, stream, leave } = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'unused' });
const model = 'sim-model';
const question = 'Tell me which replica you are.';
const messages = [{ role: 'user', content: question }];

const calls = {
  chat: () => client.chat.completions.create({ model, stream, messages }),
  completions: () => client.completions.create({ model, stream, prompt: question, max_tokens: 100 }),
  responses: () => client.responses.create({ model, stream, input: question }),
};
const deltaOf = {
  chat: (event) => event.choices[0]?.delta.content ?? '',
  completions: (event) => event.choices[0]?.text ?? '',
  responses: (event) => (event.type === 'response.output_text.delta' ? event.delta : ''),
};
const textOf = {
  chat: (answer) => answer.choices[0].message.content,
  completions: (answer) => answer.choices[0].text,
  responses: (answer) => answer.output_text,
};

let text = '';
let error = null;
try {
  const answer = await calls[api]();
  if (stream) {
    for await (const event of answer) {
      text += deltaOf[api](event);
      if (leave && text) break;
    }
  } else {
    text = textOf[api](answer);
  }
} catch (thrown) {
  if (!(thrown instanceof OpenAI.APIError)) throw thrown;
  error = { facts: thrown.error, code: thrown.code, message: thrown.message, status: thrown.status ?? null };
}
console.log(JSON.stringify({ text, error }));
