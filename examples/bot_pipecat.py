"""A pipecat bot that speaks through this server: only `base_url` differs from a bot that uses Deepgram.

    pip install 'pipecat-ai[deepgram]'
    make run                                  # the server, in another terminal
    python examples/bot_pipecat.py            # writes what the pipeline got to speech.wav

With --call CA1 the speech goes to the carrier's leg of that call, and the pipeline gets silence of the same length.
"""

import argparse
import asyncio
import wave

from pipecat.frames.frames import EndFrame, TTSAudioRawFrame, TTSSpeakFrame, TTSStoppedFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.deepgram.tts import DeepgramTTSService
from pipecat.workers.runner import WorkerRunner


class Recorder(FrameProcessor):
    """Stands where the transport of a real bot is."""

    def __init__(self, file):
        super().__init__()
        self.file, self.stopped = file, asyncio.Event()

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.file.writeframes(frame.audio)
        elif isinstance(frame, TTSStoppedFrame):
            self.stopped.set()
        await self.push_frame(frame, direction)


async def main(server, key, call, path):
    base_url = f"{server}/calls/{call}" if call else server
    speech = DeepgramTTSService(api_key=key, base_url=base_url, sample_rate=8000)  # <- the one line
    with wave.open(path, "wb") as file:
        file.setnchannels(1), file.setsampwidth(2), file.setframerate(8000)
        recorder = Recorder(file)
        worker = PipelineWorker(Pipeline([speech, recorder]))

        async def speak():
            await worker.queue_frame(TTSSpeakFrame("Hello, this is your bank. Your balance is forty two dollars."))
            await asyncio.wait_for(recorder.stopped.wait(), 20)
            await worker.queue_frame(EndFrame())

        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        await asyncio.gather(runner.run(), speak())


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--server", default="ws://127.0.0.1:8080")
    options.add_argument("--key", default="none", help="a token of the server, if it has any")
    options.add_argument("--call", help="join the call of a carrier's media leg")
    options.add_argument("--out", default="speech.wav")
    given = options.parse_args()
    asyncio.run(main(given.server, given.key, given.call, given.out))
