package githubtest

// Fail answers the next requests with a status, such as 429 or 503.
func (s *Server) Fail(requests, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing, s.failStatus = requests, status
}

// ExpireToken makes the token of the session invalid. The client must refresh the session.
func (s *Server) ExpireToken() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil {
		s.session.MessageQueueAccessToken = "expired"
		s.notify(nil)
	}
}

// DropSession ends the session. The client must open another one.
func (s *Server) DropSession() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = nil
	s.notify(nil)
}

// Requests returns the number of requests to an endpoint, by its pattern.
func (s *Server) Requests(pattern string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[pattern]
}

func (s *Server) count(pattern string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[pattern]++
}

// fault returns the status of a failing request, or 0.
func (s *Server) fault() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing == 0 {
		return 0
	}
	s.failing--
	return s.failStatus
}
