      program alone
      interface
         subroutine score_initialize() bind(c)
         end subroutine
      end interface
      call score_initialize()
      print '(a)', 'node 0'
      end
